"""Charts of answers: `behaviour`, `retrieval`, `study`, `windows`, `ablation`, `heads`."""
