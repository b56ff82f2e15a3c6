"""What the commands share: `options` as they are declared and read, `steps` that all of them take, `output` to stdout and
stderr, `manners` (--quiet, --json), and `signals` for a command that keeps what it has done.
"""
