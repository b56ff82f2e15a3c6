"""The paper's figures by number, its lemmas as checks, and the questions that it leaves open."""
