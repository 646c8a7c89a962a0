"""What does a folder hold that one begins with: for data of one's own, or for a method?

Part of the front. ``labelskew new`` uses it.
"""
