"""The paper reproduced on a model: a recipe, a directory of measured parts that a later run
resumes, and one page of claims.
"""
