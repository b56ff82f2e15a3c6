"""Commands that are more than one call of a public function: they load models, or need none."""
