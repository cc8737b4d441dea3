"""How near answers come to references: metrics by name, and samplers beside one another by them."""
