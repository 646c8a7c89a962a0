"""Secure aggregation: a server learns only the sum of the silos' vectors.

Protocol: Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017
(https://doi.org/10.1145/3133956.3133982), figure 4; see docs/secure.md. Differences: keys are new and signed in each
attempt, and silos commit to their shares.

:mod:`.silo` and :mod:`.server` are the two sides; :mod:`.asking` and :mod:`.answering` connect them.
"""
