"""How histories are made and cut down: the world and the drivers over it."""
