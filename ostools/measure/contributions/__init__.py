"""What each token contributes to the answer: parts of a number that add up to it."""
