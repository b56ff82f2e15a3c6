"""Charts of answers: `evaluate`, `retrieval`, `study`, `windows`, `ablation`, `heads`."""
