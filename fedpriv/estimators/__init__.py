"""Private logistic regression as a scikit-learn estimator, and tools for its pipelines."""
