"""Adapt the similarity of an existing search to feedback, only as far as the feedback can be trusted."""
