"""Measured claims. towers is imported first: it sets the generation of Keras before anything here loads TensorFlow."""

import towers  # noqa: F401
