"""The engine inside the training process: scheduler, cache, prompt pass, one-token step, sampler."""
