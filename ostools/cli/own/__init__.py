"""Commands that are more than one call of a public function: they load models themselves, or need none."""
