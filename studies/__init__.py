"""Research of this project that is in no wheel: it imports `ostools`, and `ostools` never imports
it.

`training`: how the embedded models were trained. `laboratory`: small decoders, equal but for one
    thing.
"""
