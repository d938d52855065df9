"""A whole cohort as raw values in one folder, mapped into memory, so that bags are read at the speed of the disk.

A pack contains `features.f16` (or `features.f32`), `coords.i64`, `lowres.u8` and `index.json`. `asmil pack` creates
one, which can replace the feature files wherever features are given; training creates one as its disk cache.

`files`: names and state of the files; `index`: the index; `reading`, `writing`: one pack; `packing`: a cohort.
"""
