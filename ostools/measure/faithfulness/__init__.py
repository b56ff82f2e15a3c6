"""Is sensitivity use? Tokens taken out one by one, held against what profiles say of them
(`faithfulness`); how far towards another token the derivative carries (`linear_range`).
"""
