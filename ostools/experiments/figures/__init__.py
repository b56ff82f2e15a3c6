"""The paper's figures by number; `answering` asks their prompts, `decay` has what curves over lengths share."""
