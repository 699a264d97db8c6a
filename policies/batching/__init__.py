"""What does one engine step run, and how much prompt can an engine still take?"""
