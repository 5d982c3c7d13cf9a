"""diffprivlib's part of `logistic_regression.py`. It imports nothing of fedpriv, so that any interpreter can run it."""

import json
import sys
import warnings

import diffprivlib
import numpy as np
import sklearn
from diffprivlib.models import LogisticRegression

task = json.loads(sys.argv[1])
rows = np.load(task["rows"])
# L-BFGS on a perturbed objective often stops early, with a warning each time
warnings.simplefilter("ignore")


def accuracy(epsilon: float, c: float, seed: int) -> float:
    """Returns the accuracy on the test rows."""
    model = LogisticRegression(epsilon=epsilon, data_norm=task["norm"], C=c, random_state=seed)
    return float(model.fit(rows["x"], rows["y"]).score(rows["x_test"], rows["y_test"]))


accuracies = [[[accuracy(e, c, s) for s in range(task["seeds"])] for c in task["grid"]] for e in task["epsilons"]]
print(json.dumps({"version": diffprivlib.__version__, "sklearn": sklearn.__version__, "accuracies": accuracies}))
