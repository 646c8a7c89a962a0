"""The recurrent network for LEAF's Shakespeare: Caldas et al., "LEAF", 2018, https://arxiv.org/abs/1812.01097."""

import torch
from fl_labelskew_registry import Network, mistake
from pydantic import Field
from torch import nn

from fl_labelskew_plugins.models.base import FeatureNet
from fl_labelskew_plugins.params import Params


class LastOutput(nn.Module):
    """Embedding and LSTM: ``(B, L)`` uint8 to the last layer's output at the last character, ``(B, hidden)``."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(self.embedding(x.int()))
        last: torch.Tensor = outputs[:, -1]
        return last


class CharLSTM(Network):
    """LEAF's and FedRS's CharLSTM: embedding of 8, two LSTM layers of 256; samples are character indices ``(L,)``.

    With a vocabulary of 81: 799,368 parameters, d = 256 and 4 layers with embedding and classifier (FedRS, table 4).
    """

    class Params(Params):
        vocabulary: int | None = Field(
            None, ge=1, le=256, description="Number of characters; default: number of classes."
        )
        embedding: int = Field(8, ge=1, description="Size of a character's embedding.")
        hidden: int = Field(256, ge=1, description="d, width of each LSTM layer.")
        layers: int = Field(2, ge=1, description="LSTM layers.")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> FeatureNet:
        if len(input_shape) != 1:
            needs = f"needs rows of characters, but this data set has samples of shape {tuple(input_shape)}"
            raise mistake("model char_lstm", needs, "the data set shakespeare, or another network")
        options = self.params
        body = LastOutput(options.vocabulary or num_classes, options.embedding, options.hidden, options.layers)
        return FeatureNet(body, options.hidden, num_classes, text=True)
