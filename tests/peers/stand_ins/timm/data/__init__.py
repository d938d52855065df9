"""Nothing but the constants below it."""
