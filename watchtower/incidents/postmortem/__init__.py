"""The post-mortem of an incident: values in, a document out."""
