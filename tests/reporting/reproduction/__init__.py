"""The paper reproduced: parts stored and resumed, the recipe, the page."""
