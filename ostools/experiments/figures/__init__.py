"""The paper's figures by number; `answering` asks their prompts."""
