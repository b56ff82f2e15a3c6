"""The paper's mathematics as pure tensor functions: no model, no I/O."""

from ostools.theory import distances as distances
