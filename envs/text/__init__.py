"""Problems in text whose answers can be checked: data files, procedural tasks, a calculator as a tool. Imports no
torch."""
