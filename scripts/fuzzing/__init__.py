"""A fuzzer of what takes a user's data: constructors, infos, plans, patterns, letters, file readers."""
