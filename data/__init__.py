"""Text corpora, tokenizers and resumable batches for training and evaluation."""
