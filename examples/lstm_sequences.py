"""Train an LSTM that predicts the next character at every position of a sequence."""

import codecs
import this  # the Zen of Python; importing it prints it

import numpy as np
from torch import Tensor, nn

import heterophony as hp


class NextCharacter(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 16)
        self.lstm = nn.LSTM(16, 64, batch_first=True)
        self.head = nn.Linear(64, characters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


text = codecs.decode(this.s, "rot13")
alphabet, tokens = np.unique(list(text), return_inverse=True)
windows = np.lib.stride_tricks.sliding_window_view(tokens, 21)[::4]
clients = hp.federate((windows[:, :-1], windows[:, 1:]), task="sequence", clients=5)
how = {"model": NextCharacter(len(alphabet)), "training": hp.Training(lr=0.5, epochs=2)}
result = hp.run("ditto", clients, rounds=10, participation=1.0, **how)
print(result, result.metrics)  # G and P are the share of characters that are predicted correctly
