"""How does a server learn the sum of what silos send, and nothing else? One round of masks, without any network.

After Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017
(https://doi.org/10.1145/3133956.3133982), figure 4, with its check against an active server. What differs: keys are
made anew for each attempt and signed each time, a secret is 16 bytes that keys are derived from, and silos commit
themselves to the shares that they deal, so that a wrong one is known, and whose it is.

Messages are ``{rank: bytes}``, and vectors of the ring. :mod:`.silo` and :mod:`.server` are the two sides; nothing here
sends. Needs cryptography and pycryptodome.
"""
