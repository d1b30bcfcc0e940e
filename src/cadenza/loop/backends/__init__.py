"""Back ends: training stacks that the loop can drive."""
