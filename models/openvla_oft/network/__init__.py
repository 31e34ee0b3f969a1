"""The network itself: its sizes, its parts, their first weights, what a pass costs."""
