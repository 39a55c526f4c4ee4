"""The parts an algorithm is a row of: pure functions of tensors, each a frozen dataclass with one `__call__`."""
