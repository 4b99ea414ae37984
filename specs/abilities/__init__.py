"""One module per ability: its commands, how the model moves under them, its properties."""
