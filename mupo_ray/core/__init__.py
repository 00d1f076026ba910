"""Pure maths: numpy, scipy and torch only. No I/O, no clock, no globals, no Ray."""
