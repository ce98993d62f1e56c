"""The report as one HTML file that loads nothing: `render.write_report` puts it together from whatever there is."""
