"""Training an agent's model: sample, grade, compare within the group, learn, publish, checkpoint, validate.

The learner sees exactly the token ids that were sampled and the log-probabilities that they were
sampled with; nothing is ever tokenised a second time. Torch is imported by the modules that
compute and by nothing else: settings, advantages and what the command line needs stay light.
"""
