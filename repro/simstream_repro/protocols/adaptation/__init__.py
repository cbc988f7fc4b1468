"""What learning from feedback gains, beside layers trained in batches.

A *task* (`tasks`) is what a *contender* (`contenders`) may learn from: judged queries of a test collection,
labelled items, or triplets that people answered. Layers of torch (`torch_layers`) are the opponents.
`measuring` runs one contender on one task.
"""
