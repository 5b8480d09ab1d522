//! Every wire shape: the native API and its dialects, to and from the core model.
