"""Where heads look: `attention` (of the last token), `difference` (two of them, token by token),
`heads` (scores of each), `baselines` (attention alone as a profile over the tokens).
"""
