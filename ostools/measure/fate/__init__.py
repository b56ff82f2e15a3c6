"""Where an answer is lost: `decodable` (is it in the representation?), `readout` (does the output read it?) and `fate` (the
verdict of every length). `prefilled` makes the prompts, `captured` runs them; `splits`, `probes` and `scores` train and test
linear probes on what they hold.
"""
