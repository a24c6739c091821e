"""How far a predictor was off."""

from dataclasses import dataclass

from toolkit.policies.predictors.outlook import Outlook

HORIZON = 80
KEEP = 0.998
"""What a judgement weighs beside the next one: the means are over about the last 500."""


@dataclass(slots=True)
class Errors:
    """Running means over the steps of requests that ended: each request is judged at one age of
    its life, any as likely as another, and weighs as much as it has steps.

    `steps`: |c - min(H, what it really had left)|, of H = 80 steps; `bias` the same with its sign
    (above 0: predicted to stay longer than it did); `square` its square, and `never` the square of
    the guess that nothing ever ends, to compare (squares, since c is a mean: 40 is the right answer
    to a coin toss between 0 and 80); `brier`: (p_fin - whether it ended within H)^2, in [0, 1].
    """

    judged: int = 0
    steps: float = 0.0
    bias: float = 0.0
    square: float = 0.0
    never: float = 0.0
    brier: float = 0.0
    weight: float = 0.0

    @property
    def skill(self) -> float:
        """Share of the squared error of "nothing ends" that is gone: 1 is perfect, 0 useless."""
        return 1.0 - self.square / self.never if self.never > 0 else 0.0

    def judge(self, outlook: Outlook, age: int, left: int) -> None:
        """Hold an outlook over HORIZON steps on one request, `age` tokens old, against the `left`
        steps that it had to go (1 or more)."""
        true = min(HORIZON, left)
        error = float(outlook.steps(HORIZON)[0]) - true
        ended = float(left <= HORIZON)
        self.judged += 1
        steps = age + left
        self.weight = KEEP * self.weight + steps
        new = steps / self.weight
        self.steps += new * (abs(error) - self.steps)
        self.bias += new * (error - self.bias)
        self.square += new * (error**2 - self.square)
        self.never += new * ((HORIZON - true) ** 2 - self.never)
        self.brier += new * ((float(outlook.p_fin[0]) - ended) ** 2 - self.brier)
