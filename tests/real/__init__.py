"""The laws on real pretrained models: `make real` installs them; where they are not installed the
tests are skipped.
"""
