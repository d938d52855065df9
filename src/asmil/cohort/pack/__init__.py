"""A whole cohort as raw values in one folder, mapped into memory: bags are read at the speed of the disk.

A pack holds `features.f16` (or `features.f32`), `coords.i64`, `lowres.u8` and `index.json`. `asmil pack` makes one,
which then replaces the feature files wherever features are named; training makes one as its cache.

`files`: names and state of the files; `index`: what lies where; `reading`, `writing`: one pack; `packing`: a cohort.
"""
