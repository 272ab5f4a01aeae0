"""A linear model on eight features with sampled negatives: small, but it really learns."""

import random
from array import array

FEATURES = 8
VOCABULARY = 512
NEGATIVES = 4


class Negatives:
    """The words with which a sample is compared."""

    excluded = frozenset(range(16))

    def draw_negatives(self):
        negatives = []
        while len(negatives) < NEGATIVES:
            word = random.randrange(VOCABULARY)
            if word not in self.excluded:
                negatives.append(word)
        return negatives


class Model(Negatives):
    def __init__(self, device):
        self.device = device
        self.weights = array("d", [0.0] * FEATURES)
        self.gradients = array("d", [0.0] * FEATURES)

    def forward(self, batch):
        self.draw_negatives()
        self.device.synchronize(0.35)
        return [self.predict(sample) - sum(sample) for sample in batch]

    def predict(self, sample):
        return sum(w * x for w, x in zip(self.weights, sample, strict=True))

    def backward(self, batch, errors):
        self.device.synchronize(0.5)
        for feature in range(FEATURES):
            slope = sum(e * sample[feature] for e, sample in zip(errors, batch, strict=True))
            self.gradients[feature] += slope / len(batch)

    def update(self, gradients, rate=0.05):
        for feature, gradient in enumerate(gradients):
            self.weights[feature] -= rate * gradient
            self.gradients[feature] = 0.0
