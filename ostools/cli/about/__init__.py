"""The commands about this installation: `listings` of tasks, mitigations and models, and the `doctor`."""
