"""Tables whose log lists their files: Delta by deltalake; the others are refused by name."""
