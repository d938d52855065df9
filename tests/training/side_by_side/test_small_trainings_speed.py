"""How the benchmark of small trainings divides its bags."""

import small_trainings_speed


def test_replicas_are_ten_folds_twice():
    parts = small_trainings_speed.make_parts(40)
    assert len(parts) == 20
    assert {len(part) for part in parts[:10]} == {36}
    assert {len(part) for part in parts[10:]} == {32}
