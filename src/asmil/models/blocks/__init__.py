"""Parts that several methods are built of; each stands here once."""
