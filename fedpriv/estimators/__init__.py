"""Private logistic regression as a scikit-learn estimator, and what its pipelines need."""
